"""What models that did not learn them think of instances, and how likely each label is wrong."""
