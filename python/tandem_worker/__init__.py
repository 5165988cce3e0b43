"""Tandem's worker processes: what only Python libraries or the user's Python code can do, kept out of the trainer.

`python -m tandem_worker.<mode>` with mode tokenizer, grader or sink serves the program that started it over an
inherited socket (protocol.py). Nobody starts these by hand.
"""
