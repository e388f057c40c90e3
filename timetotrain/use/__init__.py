"""What a person does beside a run: own data into records, a trained model to other programs, predictions."""
