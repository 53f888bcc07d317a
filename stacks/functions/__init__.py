"""Lambda functions. Each package is the complete asset of one function and does not import other project packages."""
