"""What a retrace will take, before it is begun."""
