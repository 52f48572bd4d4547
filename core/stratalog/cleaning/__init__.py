"""What a cleanup policy sees, and how its plan is carried out."""
