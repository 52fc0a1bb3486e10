"""Importers: other projects' people become scenarios, their recorded conversations become runs.

`sage` reads SAGE and RLVER (profiles and recordings), `moodsona` its personas, `empa` the result files of EMPA. None of
their data is part of this package; docs/importing.md says where each is to be had, under which licence, what is kept
and what is guessed.
"""
