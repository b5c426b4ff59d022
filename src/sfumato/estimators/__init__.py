"""Estimators: what people call, with scikit-learn's conventions."""
