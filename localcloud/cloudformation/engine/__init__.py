"""Stacks and the operations that plan, deploy, roll back and delete them."""
