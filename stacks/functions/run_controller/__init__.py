"""The run controller: the Lambda function that sizes the fleet. `handler` looks and acts, `policy` decides."""
