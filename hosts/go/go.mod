module attnkit

go 1.19
