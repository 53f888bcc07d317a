"""Uses a trained model: writes its weights for other programs, samples text from it, and evaluates it."""
