"""How much of the time that spot capacity exists a run would have used: replay of recorded availability."""
