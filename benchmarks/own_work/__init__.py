"""Trains user-supplied scripts, kills them, and compares the resumed runs with uninterrupted ones."""
