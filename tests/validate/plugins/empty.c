/* The function that a faulty plugin needs beside itself. */
int attnkit_validate_empty(void);
int attnkit_validate_empty(void) { return 0; }
