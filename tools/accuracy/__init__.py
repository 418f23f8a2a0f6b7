"""Predictions of `forebay fit` beside public measurements of GPU memory: measurements, predictions, scores, page."""
