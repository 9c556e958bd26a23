"""The rules that every plan keeps, a file each; `spindle_sim.plan.validate_plan` applies them."""
