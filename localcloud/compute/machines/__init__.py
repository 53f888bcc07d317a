"""Runs instances as process trees and provides their metadata service."""
