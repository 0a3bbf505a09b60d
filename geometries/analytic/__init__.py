"""Analytic reconstruction: filtered backprojection as a composition of operators.

Each step (weights, ramp, gather) is a `LinearOperator`; `reconstruct` composes them. Formulas hold
for circular parallel and fan scans and are never applied outside of them.
"""
