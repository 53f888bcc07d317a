"""API operations on capacity reservations and capacity blocks."""
