"""The exercises, one module (or more) for each chapter; the tests prove each of them.

A module chapter_NN.py holds reference solutions, examinations and the list EXERCISES (exercise.py).
A reference solution is printed to the learner as it stands, so it uses only names that the notebook
has imported.
"""
