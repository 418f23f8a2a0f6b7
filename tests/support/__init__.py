"""Test support that is not shipped: plain models, golden replay, random programs."""
