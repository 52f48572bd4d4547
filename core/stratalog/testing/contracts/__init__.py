"""Contract classes: subclass one, give its fixture, and pytest checks a component of that kind."""
