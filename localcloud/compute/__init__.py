"""EC2 instances that run as processes, the metadata service, fleets, Auto Scaling and spot interruptions."""
