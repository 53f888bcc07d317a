"""The node program of a pod in a Kubernetes cluster: boots and supervises like a node of a fleet, without an instance.

The pod's identity is in its environment, the documents are in a ConfigMap, and SIGTERM is the notice.
"""
