"""The parts of the HTML report: a template, a style, a small script, and a module for each section."""
