"""Plan, simulate and execute multi-task multi-modal training: an open implementation of Spindle."""

__version__ = "0.1.0"
