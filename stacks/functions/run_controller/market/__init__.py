"""What AWS asks for capacity, how likely it grants it, and when nodes move to a cheaper place."""
