"""Artifacts that a deployment ships: code bundles and the wheelhouse."""
