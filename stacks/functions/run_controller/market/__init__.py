"""What AWS asks for capacity, and how likely it grants it: spot prices and placement scores."""
