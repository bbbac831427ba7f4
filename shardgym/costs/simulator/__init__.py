"""The learned simulator. Importing this loads neither torch nor pyarrow."""
