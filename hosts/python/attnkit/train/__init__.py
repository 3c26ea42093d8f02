"""Trains what a manifest describes: python -m attnkit.train MANIFEST --data train.tsv --dev dev.tsv.

examples: a data set as batches.  trainer: the loop, for a program of one's own.
"""
