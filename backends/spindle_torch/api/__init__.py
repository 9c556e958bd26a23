"""What users write: tasks of their own torch modules, split, planned and trained (section 4)."""
