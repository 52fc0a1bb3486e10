"""Attacks on a judge and a scorer: policies that deserve nothing, a searcher, and what they earn.

`attacks` are scripted policies, `search` looks for a script that pays, `report` plays all of them.
"""
