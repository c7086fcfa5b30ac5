"""Rewards: named rules, your own functions, services, people and learned judges, alone or as a weighted mix.

A kind of reward is one class (part.py says what it is asked), in a file of its name. docs/rewards.md lists them.
"""
