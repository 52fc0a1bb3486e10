"""engine=openrlhf: a job as OpenRLHF 0.11.2 takes it, on Ray.

`prepare` writes a data set, an agent file and the command. Nothing here needs a GPU, Ray or OpenRLHF, but for `agent`,
which OpenRLHF itself imports on the machines that train.
"""
