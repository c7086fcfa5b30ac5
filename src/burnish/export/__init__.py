"""What was learned, in the forms that other tools load; each is tried by its consumer before it is called done."""
