"""Copies: instances that are in the data twice, exactly or nearly, in one part or in two."""
