"""Changes of the gang in place: how the ranks meet and agree (change), and the state that they exchange (state)."""
