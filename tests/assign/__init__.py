"""Tests of the assignor."""
