"""What a retrace will cost, estimated before it starts."""
