module attnkit/translate

go 1.19
