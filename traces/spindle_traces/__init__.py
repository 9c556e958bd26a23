"""Data with provenance: device models, measured times, profiles. Files only, no code."""
