"result"
