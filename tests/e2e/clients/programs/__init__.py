"""What runs inside the environments of client libraries: nothing here may import more than the library and these."""
