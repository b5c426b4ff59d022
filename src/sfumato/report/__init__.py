"""What people see of data and results: plain records, and texts and pictures of them."""
