"""What runs beside the tests inside a grading sandbox, under the task's own interpreter."""
