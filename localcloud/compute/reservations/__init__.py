"""Capacity reservations: on-demand ones, capacity blocks, and interruptible ones cut out of an on-demand one."""
