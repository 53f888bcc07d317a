"""The run controller: the Lambda function that resizes the fleet. `handler` calls AWS, and `policy` makes decisions."""
