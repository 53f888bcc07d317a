"""Turns a deployment file whose run consists of pods into manifests, and observes the run through kubectl."""
