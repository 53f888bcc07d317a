"""The sections for clusters that AWS manages: PCS, HyperPod and EKS."""
