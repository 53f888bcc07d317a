"""The container image of a deployment file: `trainstack image lock`, `build` and `lint` (docs/container-images.md)."""
